// Attention of token rows over block tables, on the CPU.
//
// No MLX and no Python here: plain pointers and strides, counted in elements. Every sum is float32
// and its order depends only on the row's own table and length, so a row gives the same bits alone,
// packed with others, in any chunking and with any number of threads.
//
// Thread-safety: calls may come from any thread; the caller keeps two calls from writing the same
// slab at once. Ownership: nothing is kept after a call returns.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/float_type.h"

namespace pomona::kernels {

// Token rows as MLX hands them over, [B, H, L, D] with any strides; row t is (t / L, t % L).
struct TokenRows {
  const void* data;
  Float type;
  int64_t length;  // L
  int64_t heads, dim;
  int64_t batch_stride, head_stride, token_stride, dim_stride;
};

// One half (K or V) of a layer's slab: [blocks, block_size, heads, dim], dense.
struct SlabHalf {
  void* data;
  Float type;
  int64_t block_size;
  int64_t heads, dim;
};

// What the rows of one call see. See StepTable in csrc/ops/step_table.h.
struct RowTables {
  const int32_t* tables;  // [S, table_width]
  int64_t table_width;
  const int32_t* sequence;  // [T]
  const int32_t* visible;   // [T]
  int64_t tokens;           // T
};

struct Attention {
  TokenRows q;
  SlabHalf keys, values;
  RowTables rows;
  float scale;
  int64_t window;      // 0: none
  const float* sinks;  // one logit per query head, or null
  void* out;           // [T, query heads, values.dim], dense, in q.type
};

// Copies whole blocks, in order; `copies` holds pairs (source, destination).
void copy_blocks(const SlabHalf& slab, std::span<const int32_t> copies);

// Puts token row t into slots[t] = block * block_size + offset. The types must be equal.
void write_rows(const TokenRows& rows, const SlabHalf& slab, std::span<const int32_t> slots);

// Copies the first `count` tokens of a table to `out`, dense [heads, count, dim].
void gather_rows(const SlabHalf& slab, std::span<const int32_t> table, int64_t count, void* out);

void attend(const Attention& attention);

}  // namespace pomona::kernels
