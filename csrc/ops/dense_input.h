// An input of any strides as dense memory.

#pragma once

#include <cstring>
#include <vector>

#include "mlx/array.h"

namespace pomona::ops {

// Row after row in the order of the shape: the array's own memory where it lies so, else a copy in
// `buffer`. Call when the array has been computed.
inline const void* dense_input(const mlx::core::array& x, std::vector<char>& buffer) {
  if (x.flags().row_contiguous) return x.data<void>();
  const size_t item = x.itemsize();
  buffer.resize(x.size() * item);
  const char* from = x.data<char>();
  std::vector<int> index(x.ndim());
  for (size_t i = 0; i < x.size(); i++) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); d++) at += index[d] * x.strides(static_cast<int>(d));
    std::memcpy(buffer.data() + i * item, from + at * static_cast<int64_t>(item), item);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == x.shape(static_cast<int>(d));)
      index[d] = 0;
  }
  return buffer.data();
}

}  // namespace pomona::ops
