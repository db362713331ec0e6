// A weight matrix as MLX stores it: dense, or packed by mx.quantize.
//
// No MLX here. Pointers are borrowed: whoever makes a Weights keeps the memory alive. Nothing is
// copied or repacked, so a model's weights exist once.

#pragma once

#include <cstdint>

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {

// How a value is stored. Formats of mx.quantize: https://ml-explore.github.io/mlx (mx.quantize).
enum class Code {
  kDense,   // type
  kAffine,  // unsigned codes of 2, 3, 4, 5, 6 or 8 bits; value = scale * code + bias, in `type`
  kMxfp4,   // FP4 E2M1 codes; a group of 32 has one power of two as scale (E8M0)
  kMxfp8,   // FP8 E4M3 codes; scales as above
  kNvfp4,   // FP4 E2M1 codes; a group of 16 has an FP8 E4M3 scale
};

// [rows, depth]: y = x W^T, so each row gives one output column.
struct Weights {
  Code code = Code::kDense;
  Float type = Float::kFloat32;  // of dense values, or of an affine matrix's scales and biases
  int64_t rows = 0, depth = 0;
  const void* data = nullptr;    // dense, or packed 32-bit words, row after row
  const void* scales = nullptr;  // [rows, depth / group_size]
  const void* biases = nullptr;  // the same; affine only
  int bits = 0;
  int64_t group_size = 0;
};

// Bytes of one row of `data`.
[[gnu::always_inline]] inline int64_t row_bytes(const Weights& w) {
  return w.code == Code::kDense ? w.depth * size_of(w.type) : w.depth * w.bits / 8;
}

}  // namespace pomona::kernels
