// The part of matrix products that is compiled once per instruction set.

#pragma once

#include "kernels/cpu/matmul.h"

namespace pomona::kernels {

struct MatmulKernels {
  int64_t tile_rows;  // most rows that go through the inner loop together

  // As in matmul.h.
  void (*multiply)(const PackedLayout& layout, const float* packed, const Unit* units,
                   int64_t count, float* scratch, float* out);

  // Values [begin, end) of a row of the matrix as float32.
  void (*decode)(const Weights& w, int64_t row, int64_t begin, int64_t end, float* out);
};

// Floats of scratch that `multiply` needs, 64-byte aligned.
constexpr int64_t kMatmulScratch = 2 * kUnit * kSumBlock;

namespace generic {
MatmulKernels matmul_kernels();
}
namespace neon {
MatmulKernels matmul_kernels();
}
namespace avx2 {
MatmulKernels matmul_kernels();
}
namespace avx512 {
MatmulKernels matmul_kernels();
}

}  // namespace pomona::kernels
