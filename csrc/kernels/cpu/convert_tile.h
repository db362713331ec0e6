// Between float32 and the types that arrays come in; compiled once per instruction set.

#pragma once

#include <cstdint>

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {

struct ConvertKernels {
  void (*widen)(Float type, const void* from, int64_t count, float* to);

  // Rounds to nearest even.
  void (*narrow)(const float* from, int64_t count, Float type, void* to);
};

namespace generic {
ConvertKernels convert_kernels();
}
namespace neon {
ConvertKernels convert_kernels();
}
namespace avx2 {
ConvertKernels convert_kernels();
}
namespace avx512 {
ConvertKernels convert_kernels();
}

}  // namespace pomona::kernels
