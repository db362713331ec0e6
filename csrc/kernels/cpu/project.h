// The steps that layers are made of: packing rows of activations and multiplying them with one or
// more matrices, shared out over the threads.
//
// Thread-safety: as ThreadPool::run. Ownership: nothing is kept after a call returns.

#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/rows.h"

namespace pomona::kernels {

// A matrix and, where it is not null, what is added to its products: bias[rows].
struct Linear {
  Weights weights;
  const float* bias = nullptr;
};

// Rows of each pass over a layer's matrices: as equal as whole tiles allow, at most kRowBlock.
int64_t rows_per_block(int64_t rows);

// Calls body(first, count) for each such block.
template <typename Body>
void for_blocks(int64_t rows, const Body& body) {
  const int64_t step = rows_per_block(rows);
  for (int64_t first = 0; first < rows; first += step) body(first, std::min(step, rows - first));
}

// Rows as packed activations, normed first where `norm` is not null.
void pack(const Rows& rows, const Norm* norm, const PackedLayout& layout, float* packed);

// Calls body(begin, end) on ranges of [0, units), of at most `step` where they are shared out:
// small ones are made smaller still, so that every thread gets as many. `work` as for share().
void share_units(int64_t work, int64_t units, int64_t step,
                 FunctionRef<void(int64_t, int64_t)> body);

// Units of a single row are faster two at once than one after the other.
inline int64_t units_at_once(int64_t rows) { return rows == 1 ? 2 : 1; }

// Calls finish(i, first, columns, sums) for every unit of matrix i: `sums` [rows, kUnit] are its
// products, without bias. Any thread may call it, in any order.
using Finish = FunctionRef<void(int64_t matrix, int64_t first, int64_t columns, const float* sums)>;
void project(const PackedLayout& layout, const float* packed, std::span<const Linear> matrices,
             Finish finish);

// What becomes of a unit of products: out = residual + scale * (sums + bias).
struct Epilogue {
  const float* bias;  // or null
  float scale;
  Rows residual;  // or no_rows()
  Target out;

  void operator()(int64_t first, int64_t columns, const float* sums, int64_t rows) const;
};

// out = residual + scale * (matrix times the rows + bias); residual may be no_rows().
void project_rows(const Linear& matrix, const Rows& x, float scale, const Rows& residual,
                  const Target& out);

}  // namespace pomona::kernels
