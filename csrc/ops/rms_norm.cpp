#include "ops/rms_norm.h"

#include <utility>

#include "kernels/cpu/rows.h"
#include "mlx/utils.h"
#include "ops/require.h"
#include "ops/row_primitive.h"
#include "ops/values.h"

namespace pomona::ops {

namespace mx = mlx::core;

Norm::Norm(const std::optional<mx::array>& weight, float eps) : eps_(eps) {
  if (!weight) return;
  constexpr Require require{"Norm"};
  require(weight->ndim() == 1 && weight->size() > 0, "weight must be [dim], got shape ",
          weight->shape());
  float_of(weight->dtype(), "Norm: weight");
  weight_ = values_of(*weight);
}

mx::array rms_norm(const mx::array& x, std::shared_ptr<const Norm> norm) {
  constexpr Require require{"rms_norm"};
  require(x.ndim() > 0 && norm->fits(x.shape(-1)), "x has shape ", x.shape(), ", the weight is [",
          norm->dim(), "]");
  return row_primitive(
      "rms_norm", {x}, x.shape(),
      [norm = std::move(norm)](const auto&, const kernels::Rows& rows, const kernels::Target& out) {
        kernels::rms_norm(rows, norm->view(), out);
      });
}

}  // namespace pomona::ops
