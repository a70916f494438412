#!/usr/bin/env python3
"""Writes gguf_parts-0000N-of-00003.gguf, a model split by GGUF's own package as by llama.cpp's converter. It
has the tensors of put_gguf in tests/unit/load.c. python3 tests/golden/gguf_parts.py"""
import os

import gguf
import numpy


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_parts.gguf")
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=1)
    writer.add_name("parts")
    writer.add_tensor("a", numpy.arange(1, 7, dtype=numpy.float32).reshape(2, 3))
    writer.add_tensor("b", numpy.array([0, -1, numpy.inf], dtype=numpy.float16))
    blocks = numpy.array([[0, 0x38] + [i | i << 4 for i in range(16)]] * 2, dtype=numpy.uint8)
    writer.add_tensor("c", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
