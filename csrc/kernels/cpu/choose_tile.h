// The parts of choosing tokens that are compiled once per instruction set.

#pragma once

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {

// Tokens whose weights are summed together, for the two levels of a draw: sums of blocks keep small
// probabilities that one running sum over a vocabulary would swallow.
constexpr int64_t kDrawBlock = 128;

struct Peak {
  float value;
  int64_t index;
};

struct ChooseKernels {
  // The largest of `count` logits and its first place; NaN if there is one among them.
  Peak (*find_peak)(const void* logits, Float type, int64_t count);

  // weights[i] = 2^((logits[i] - peak) * scale), or zero where that is less than 2^-126, and zeros
  // up to the end of the last block; sums[b] is that of block b.
  void (*weigh)(const void* logits, Float type, int64_t count, float peak, float scale,
                float* weights, float* sums);

  // Zeroes the weights below `least` and sums again.
  void (*trim)(float* weights, int64_t blocks, float least, float* sums);
};

namespace generic {
ChooseKernels choose_kernels();
}
namespace neon {
ChooseKernels choose_kernels();
}
namespace avx2 {
ChooseKernels choose_kernels();
}
namespace avx512 {
ChooseKernels choose_kernels();
}

}  // namespace pomona::kernels
