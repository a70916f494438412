#!/usr/bin/env python3
"""Writes tests/examples/expected_output/bert_qa*: a tiny BertForQuestionAnswering, questions, and the answers
of Hugging Face's transformers, chosen among the logits as its pipeline for question answering does. pip
install torch transformers safetensors; python3 tests/examples/make_bert_qa.py"""
import json
import os

import numpy
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForQuestionAnswering

from make_tokenizer import EXPECTED, SENTENCES, wordpiece

CONFIG = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 24, "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "gelu",
          "layer_norm_eps": 1e-12, "pad_token_id": 0}
ENGLISH = " ".join(SENTENCES.strip().splitlines()[:3])
CASES = [
    ("How many layers does the model have?", "The model has twelve layers.", {}),
    ("How many layers does the model have?", ENGLISH, {"seq-length": 40, "stride": 10, "batch": 4}),
    ("How many layers does the model have?", ENGLISH, {"seq-length": 40, "stride": 10, "batch": 1}),
    ("Who jumps?", ENGLISH, {"seq-length": 64, "max-answer": 3, "batch": 2}),
    ("Who jumps?", ENGLISH,
     {"seq-length": 24, "stride": 1, "max-answer": 30, "batch": 5, "impossible": True}),
    ("Où était Noël?", SENTENCES, {"seq-length": 64, "batch": 3}),
    ("我们在北京?", SENTENCES, {"seq-length": 64, "stride": 31, "impossible": True, "cased": True}),
    ("cafe?", "the cafe\u0301 e\u0301tait ferme\u0301 \u4e2d", {"max-answer": 2}),
    ("transforming what?", "The end. They've said that.", {"max-answer": 1, "impossible": True}),
    ("unbelievable embeddings?", "dog", {"impossible": True}),
    ("12?", "The model", {"max-answer": 1, "impossible": True}),
    ("12?", "The quick brown fox. The model",
     {"seq-length": 11, "stride": 1, "max-answer": 1, "impossible": True}),
 ]


def spans(start, end, mask, max_answer):
    """QuestionAnsweringPipeline.postprocess and select_starts_ends of transformers 4, for one window's
    logits."""
    start, end = (numpy.where(mask, x.astype(numpy.float64), -10000.0) for x in (start, end))
    start, end = (numpy.exp(x - x.max()) for x in (start, end))
    start, end = start / start.sum(), end / end.sum()
    none = start[0] * end[0]
    start[0] = end[0] = 0
    candidates = numpy.tril(numpy.triu(numpy.outer(start, end)), max_answer - 1)
    best = candidates.argmax()
    return candidates.flat[best], best // len(start), best % len(start), none


def answer(model, tokenizer, question, context, options):
    length = options.get("seq-length", 64)
    stride = options.get("stride", min(length // 2, 128))
    special = {name: tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    first = tokenizer.encode(question, add_special_tokens=False).ids
    whole = tokenizer.encode(context, add_special_tokens=False)
    room = length - len(first) - 3
    words = [i for i in range(len(whole.ids))]
    for i, token in enumerate(whole.tokens):
        if token.startswith("##") and len(token) > 2:
            words[i] = words[i - 1]
    best, none, begin = (-1,), 1, 0
    while True:
        part = whole.ids[begin:begin + room]
        ids = [special["[CLS]"], *first, special["[SEP]"], *part, special["[SEP]"]]
        before = len(first) + 2
        types = [0] * before + [1] * (len(part) + 1)
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        mask = numpy.array([i == 0 or before <= i < before + len(part) for i in range(len(ids))])
        score, s, e, null = spans(out.start_logits[0].numpy(), out.end_logits[0].numpy(), mask,
                                  options.get("max-answer", 15))
        none = min(none, null)
        if score > best[0]:
            best = (score, begin + s - before, begin + e - before, out.start_logits[0, s].item(),
                    out.end_logits[0, e].item())
        if begin + room >= len(whole.ids):
            break
        begin += room - stride
    if options.get("impossible") and none > best[0]:
        return {"answer": None, "score": none}
    start = whole.offsets[min(i for i in range(len(words)) if words[i] == words[best[1]])][0]
    end = whole.offsets[max(i for i in range(len(words)) if words[i] == words[best[2]])][1]
    while end < len(context) and "\u0300" <= context[end] <= "\u036f":
        end += 1
    return {"answer": context[start:end], "score": best[0], "logits": best[3:],
            "bytes": [len(context[:start].encode()), len(context[:end].encode())]}


def main():
    with open(os.path.join(EXPECTED, "tokenizer_vocab.txt"), encoding="utf-8", newline="\n") as file:
        vocab = {piece: i for i, piece in enumerate(file.read().split("\n")[:-1])}
    config = dict(CONFIG, vocab_size=len(vocab))
    torch.manual_seed(4)
    model = BertForQuestionAnswering(BertConfig(**config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 0.2) +
                            ("LayerNorm.weight" in name))
        model.bert.embeddings.word_embeddings.weight[0] = 0
        model.qa_outputs.weight *= 3
    save_file({name: value.contiguous() for name, value in model.state_dict().items()},
              os.path.join(EXPECTED, "bert_qa.safetensors"), metadata={"format": "pt"})
    cases = [{"question": question, "context": context, "options": options,
              **answer(model, wordpiece(not options.get("cased"), vocab), question, context, options)}
             for question, context, options in CASES]
    with open(os.path.join(EXPECTED, "bert_qa.json"), "w", encoding="ascii") as file:
        json.dump({"config": config, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
