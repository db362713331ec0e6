// What lies between the products of a layer: norms, rotations, activations, sums and packing.
// Compiled once per instruction set. Every function treats each row for itself, in a fixed order.

#pragma once

#include <cstdint>

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {

// Of a gated MLP: activation(gate) * up, or activation(up) without a gate.
enum class Activation {
  kSilu,
  kGelu,       // by erf
  kGeluTanh,   // by its tanh approximation
  kRelu2,      // squared
  kSwigluOai,  // gpt-oss: gate and up clipped, sigmoid of 1.702 gate, up + 1; needs a gate
};

// out[r, c] = residual[r, c] + scale * (x[r, c] + bias[c]); strides in elements. `out` may be `x`
// or the residual.
struct Addition {
  int64_t rows, columns;
  const float* x;
  int64_t x_stride;
  const float* bias;  // or null
  float scale;
  const void* residual;  // or null
  Float residual_type;
  int64_t residual_stride;
  void* out;
  Float out_type;
  int64_t out_stride;
};

struct ElementwiseKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight, where weight may be null and out may be x.
  void (*rms_norm)(Float type, const void* x, int64_t count, const float* weight, float eps,
                   float* out);

  // Turns pairs of the first 2 * half values of a head, after scaling them. `angles`: half cosines,
  // then half sines. traditional: pairs are neighbours, else `half` apart.
  void (*turn)(float* head, const float* angles, int64_t half, bool traditional, float scale);

  // gate may be null; out may be either.
  void (*activate)(Activation kind, const float* gate, const float* up, int64_t count, float* out);

  void (*add)(const Addition& addition);

  // packed[k][r] = rows[r * stride + k], dense [depth][count].
  void (*pack)(const float* rows, int64_t stride, int64_t count, int64_t depth, float* packed);

  // In place.
  void (*softmax)(float* x, int64_t count);
  void (*sigmoid)(float* x, int64_t count);
};

namespace generic {
ElementwiseKernels elementwise_kernels();
}
namespace neon {
ElementwiseKernels elementwise_kernels();
}
namespace avx2 {
ElementwiseKernels elementwise_kernels();
}
namespace avx512 {
ElementwiseKernels elementwise_kernels();
}

}  // namespace pomona::kernels
