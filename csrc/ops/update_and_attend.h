// Writes the K/V of a step's token rows into a slab and attends over its blocks, in one node.

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mlx/primitives.h"
#include "ops/slab.h"
#include "ops/step_table.h"

namespace pomona::ops {

// q: [B, Hq, L, D]; k: [B, Hk, L, D]; v: [B, Hk, L, Dv], token row t = b * L + l. Returns
// [B, Hq, L, Dv] in q's dtype, laid out as [B, L, Hq, Dv]. Throws std::invalid_argument when shapes
// or dtypes do not fit the slab and the table.
mlx::core::array update_and_attend(const mlx::core::array& q, const mlx::core::array& k,
                                   const mlx::core::array& v, const Slab& slab,
                                   std::shared_ptr<const StepTable> table, float scale, int window,
                                   const std::optional<mlx::core::array>& sinks);

// Inputs: q, k, v, slab K, slab V and, optionally, sinks. The slab's arrays are leaves that the
// task writes in place: it asks for no donation, so it copies nothing when an earlier step still
// holds them, and it has a single output, so no sibling holds the inputs.
class UpdateAndAttend : public mlx::core::Primitive {
 public:
  UpdateAndAttend(mlx::core::Stream stream, std::shared_ptr<const StepTable> table, float scale,
                  int window)
      : Primitive(stream), table_(std::move(table)), scale_(scale), window_(window) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "UpdateAndAttend"; }
  std::vector<mlx::core::Shape> output_shapes(const std::vector<mlx::core::array>& inputs) override;

 private:
  std::shared_ptr<const StepTable> table_;
  float scale_;
  int window_;
};

}  // namespace pomona::ops
