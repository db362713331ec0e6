// K and V storage of one attention layer.
//
// Ownership: the slab owns its two buffers. The primitives take the arrays as graph inputs, so a
// step in flight keeps them alive, and write into them in place; MLX itself believes that they
// never change, which holds as long as no other operation sees them. Thread-safety: none; use it on
// the thread that does all MLX work.

#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/paged_attention.h"
#include "mlx/array.h"

namespace pomona::ops {

class Slab {
 public:
  // Contents are undefined until written. Throws std::invalid_argument on sizes below one and on
  // dtypes that the kernels lack.
  Slab(int blocks, int block_size, int k_heads, int k_dim, int v_heads, int v_dim,
       mlx::core::Dtype dtype);

  int blocks() const { return keys_.shape(0); }
  int block_size() const { return keys_.shape(1); }
  size_t nbytes() const { return keys_.nbytes() + values_.nbytes(); }

  // Lengthens to `blocks`, keeping the contents. No step may be in flight.
  void grow(int blocks);

  // [blocks, block_size, heads, dim].
  const mlx::core::array& keys() const { return keys_; }
  const mlx::core::array& values() const { return values_; }

  // Copies, for tests. No step may be in flight.
  mlx::core::array copy_keys() const;
  mlx::core::array copy_values() const;
  std::pair<std::uintptr_t, std::uintptr_t> address() const;

 private:
  mlx::core::array keys_, values_;
};

// Throws std::invalid_argument for a dtype that the kernels lack; `what` names it in the message.
kernels::Float float_of(mlx::core::Dtype dtype, const char* what);

// The kernels' views of MLX arrays: a [B, H, L, D] array of any strides, and one half of a slab,
// which is written although MLX calls it an input.
kernels::TokenRows token_rows(const mlx::core::array& x);
kernels::SlabHalf slab_half(const mlx::core::array& storage);

}  // namespace pomona::ops
