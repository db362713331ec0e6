// Writes token rows into one half of a slab and returns their history as a dense array: the
// gathered reader, for models whose own code touches K/V.

#pragma once

#include <memory>
#include <vector>

#include "mlx/primitives.h"
#include "ops/slab.h"
#include "ops/step_table.h"

namespace pomona::ops {

// x: [1, H, L, D], rows of one sequence. Returns [1, H, visible of the last row, D] of K or, with
// `values`, of V; the table's block copies are made for that half only. Throws
// std::invalid_argument when x does not fit the slab and the table.
mlx::core::array update_and_gather(const mlx::core::array& x, const Slab& slab, bool values,
                                   std::shared_ptr<const StepTable> table);

// Inputs: x and one half of the slab, written in place (see UpdateAndAttend).
class UpdateAndGather : public mlx::core::Primitive {
 public:
  UpdateAndGather(mlx::core::Stream stream, std::shared_ptr<const StepTable> table)
      : Primitive(stream), table_(std::move(table)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "UpdateAndGather"; }
  std::vector<mlx::core::Shape> output_shapes(const std::vector<mlx::core::array>& inputs) override;

 private:
  std::shared_ptr<const StepTable> table_;
};

}  // namespace pomona::ops
