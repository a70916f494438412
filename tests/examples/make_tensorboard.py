#!/usr/bin/env python3
"""Writes tests/examples/expected_output/tensorboard.tfevents, what TensorBoard's own protobuf and record
writer make of what board.c writes. pip install tensorboard; python3 tests/examples/make_tensorboard.py"""
import math
import os

import numpy
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected_output", "tensorboard.tfevents")
BUCKETS = 30


def scalar(tag, step, value):
    event = event_pb2.Event(wall_time=1.5, step=step)
    event.summary.value.add(tag=tag, simple_value=value)
    return event


def histogram(tag, step, values):
    event = event_pb2.Event(wall_time=1.5, step=step)
    values = [float(x) for x in values if math.isfinite(x)]
    least, most = min(values), max(values)
    counts = [float(n) for n in numpy.histogram(values, BUCKETS, (least, most) if most > least else
                                                (least, least + BUCKETS))[0]]
    width = (most - least) / BUCKETS if most > least else 1.0
    limits = [least + width * (i + 1) for i in range(BUCKETS)]
    if most > least:
        limits[-1] = most
    event.summary.value.add(tag=tag, histo=summary_pb2.HistogramProto(
        min=least, max=most, num=len(values), sum=sum(values), sum_squares=sum(x * x for x in values),
        bucket_limit=limits, bucket=counts))
    return event


def main():
    values = [(i * i % 251) / 16 - 3 for i in range(257)]
    values[3], values[4] = math.nan, math.inf
    events = [event_pb2.Event(wall_time=1.5, file_version="brain.Event:2"), scalar("loss", 1, 0.3),
              scalar("loss", 1 << 40, -1e30), scalar("a" + "\u00e9" * 99, -1, 2),
              histogram("weights", 7, values), histogram("one", 8, values[1:2])]
    for validated in False, True:
        events += [scalar("loss/train", 3, 0.5), scalar("lr", 3, 0.125)]
        events += [scalar("loss/validation", 3, 0.625)] * validated + [scalar("accuracy/train", 3, 0.75)]
        events += [scalar("accuracy/validation", 3, 0.5)] * validated
    with open(PATH, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()


if __name__ == "__main__":
    main()
