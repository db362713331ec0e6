// The types that activations, weights and slabs come in.

#pragma once

#include <cstdint>

namespace pomona::kernels {

enum class Float { kFloat32, kBfloat16, kFloat16 };

// Bytes of a value. Inlined by force, as all that kernels of several instruction sets share: the
// linker would keep one copy for all of them.
[[gnu::always_inline]] constexpr int64_t size_of(Float type) {
  return type == Float::kFloat32 ? 4 : 2;
}

}  // namespace pomona::kernels
