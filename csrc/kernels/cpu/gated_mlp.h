// down(activation(gate(x)) * up(x)), on packed rows.
//
// Thread-safety: as ThreadPool::run. Ownership: nothing is kept after a call returns.

#pragma once

#include <cstdint>

#include "kernels/cpu/elementwise_tile.h"
#include "kernels/cpu/project.h"

namespace pomona::kernels {

struct GatedMlp {
  Linear gate;  // without data: down(activation(up(x)))
  Linear up, down;
  Activation activation;

  int64_t inner() const { return up.weights.rows; }
  int64_t hidden() const { return down.weights.rows; }
};

// Multiply-adds of one row.
int64_t inner_work(const GatedMlp& mlp);

// Unit `unit` of the inner activations, of all rows, put where `down` wants them.
void inner_unit(const GatedMlp& mlp, const PackedLayout& layout, const float* packed, int64_t unit,
                const PackedLayout& inner_layout, float* inner);

// `finish` gets the products with `down`.
void gated_mlp(const GatedMlp& mlp, const PackedLayout& layout, const float* packed, Finish finish);

}  // namespace pomona::kernels
