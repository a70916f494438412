#!/usr/bin/env python3
"""Writes tests/examples/expected_output/roberta_classify*: a tiny RobertaForSequenceClassification, texts, 20
losses of its training by PyTorch as Hugging Face's Trainer does it, and what it then says. pip install torch
transformers safetensors; python3 tests/examples/make_roberta_classify.py"""
import csv
import io
import json
import os
import random

import torch
from safetensors.torch import save_file
from transformers import RobertaConfig, RobertaForSequenceClassification, get_linear_schedule_with_warmup

from make_tokenizer import EXPECTED, SENTENCES, bpe

CONFIG = {"model_type": "roberta", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 24, "max_position_embeddings": 34, "type_vocab_size": 1, "hidden_act": "gelu",
          "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
CLASSES, LENGTH, BATCH, STEPS, LR, WARMUP, DECAY, CLIP = 5, 24, 4, 20, 3e-3, 0.1, 0.1, 4.3


def texts(rng):
    words = [word for line in SENTENCES.split("\n") for word in line.split()]
    for i in range(60):
        label = rng.randrange(CLASSES - 1)  # the last class has none
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(1, 9)))
        yield label, text + ("\nline, two \"quoted\"" if i % 7 == 3 else "")


def table(rows):
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(("label", "text"))
    writer.writerows(rows)
    return file.getvalue()


def macro_f1(labels, answers):
    scores = []
    for c in sorted({*labels, *answers}):
        right = sum(a == b == c for a, b in zip(labels, answers))
        scores.append(2 * right / (labels.count(c) + answers.count(c)))
    return sum(scores) / len(scores)


def main():
    with open(os.path.join(EXPECTED, "tokenizer_vocab.json"), encoding="utf-8") as file:
        vocab = json.load(file)
    with open(os.path.join(EXPECTED, "tokenizer_merges.txt"), encoding="utf-8") as file:
        merges = [tuple(line.split(" ")) for line in file.read().split("\n")[1:-1]]
    tokenizer = bpe(vocab, merges)
    config = dict(CONFIG, vocab_size=len(vocab))
    torch.manual_seed(7)
    model = RobertaForSequenceClassification(
        RobertaConfig(**config, num_labels=CLASSES, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1) +
                            ("LayerNorm.weight" in name))
        model.roberta.embeddings.word_embeddings.weight[CONFIG["pad_token_id"]] = 0
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(weights, os.path.join(EXPECTED, "roberta_classify.safetensors"), metadata={"format": "pt"})

    rows = list(texts(random.Random(4)))

    def batch(part):
        ids = [[0, *tokenizer.encode(text, add_special_tokens=False).ids[:LENGTH - 2], 2] for _, text in part]
        longest = max(map(len, ids))
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        return {"input_ids": torch.tensor([row + [1] * (longest - len(row)) for row in ids]),
                "attention_mask": mask, "labels": torch.tensor([label for label, _ in part])}

    held = rows[9::10]
    learn = [row for i, row in enumerate(rows) if i % 10 != 9]
    plain = [p for p in model.parameters() if p.dim() == 1]
    decayed = [p for p in model.parameters() if p.dim() > 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY},
                                   {"params": plain, "weight_decay": 0.0}], lr=LR)
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP * STEPS), STEPS)
    losses, norms = [], []
    for step in range(STEPS):
        at = step % -(-len(learn) // BATCH) * BATCH
        loss = model(**batch(learn[at:at + BATCH])).loss
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    with torch.no_grad():
        out = model.eval()(**batch(held))
    answers = out.logits.argmax(1).tolist()
    labels = [label for label, _ in held]
    assert min(norms) < CLIP < max(norms) and set(answers) - set(labels) and set(labels) - set(answers), (
        norms, answers, labels)
    after = {name: value.flatten()[:16].tolist() for name, value in model.state_dict().items()}
    golden = {"config": config, "csv": table(rows), "losses": losses, "validation_loss": out.loss.item(),
              "accuracy": sum(a == b for a, b in zip(labels, answers)) / len(labels),
              "macro_f1": macro_f1(labels, answers),
              "answer": [answers[0], out.logits[0].softmax(0).max().item()], "text": held[0][1],
              "after": after,
              "options": {"classes": CLASSES, "seq-length": LENGTH, "batch": BATCH, "max-steps": STEPS,
                          "lr": LR, "warmup": WARMUP,
                          "weight-decay": DECAY, "clip": CLIP, "dropout": 0, "log": 1, "epochs": 10}}
    with open(os.path.join(EXPECTED, "roberta_classify.json"), "w", encoding="ascii") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")
    print(losses, norms, golden["accuracy"], golden["macro_f1"], golden["answer"])


if __name__ == "__main__":
    main()
