#include "ops/linear.h"

#include <utility>

#include "kernels/cpu/embed.h"
#include "kernels/cpu/project.h"
#include "ops/cpu_node.h"
#include "ops/dense_input.h"
#include "ops/require.h"
#include "ops/row_primitive.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

mx::Shape with_last(mx::Shape shape, int64_t last) {
  shape.back() = static_cast<int>(last);
  return shape;
}

mx::Shape with_axis(mx::Shape shape, int64_t last) {
  shape.push_back(static_cast<int>(last));
  return shape;
}

}  // namespace

mx::array linear(const mx::array& x, std::shared_ptr<const Weights> weights) {
  const Require require{"linear"};
  require(weights->experts() == 0, "the weights are a stack of ", weights->experts(), " matrices");
  require(x.ndim() >= 1 && x.shape(-1) == weights->depth(), "x has shape ", x.shape(),
          ", expected [..., ", weights->depth(), "]");
  mx::Shape shape = with_last(x.shape(), weights->rows());
  return row_primitive("linear", {x}, std::move(shape),
                       [weights = std::move(weights)](const auto&, const kernels::Rows& rows,
                                                      const kernels::Target& out) {
                         kernels::project_rows({weights->matrix(), weights->bias()}, rows, 1.0f,
                                               kernels::no_rows(), out);
                       });
}

mx::array embed(const mx::array& ids, std::shared_ptr<const Weights> weights) {
  const Require require{"embed"};
  require(weights->experts() == 0, "the weights are a stack of ", weights->experts(), " matrices");
  require(ids.dtype() == mx::int32 || ids.dtype() == mx::uint32,
          "ids must be int32 or uint32, got ", ids.dtype());
  const mx::Dtype dtype = weights->dtype();
  const kernels::Float type = float_of(dtype, "embed: weights");
  mx::Shape shape = with_axis(ids.shape(), weights->depth());
  const auto work = [type, weights = std::move(weights)](const std::vector<mx::array>& inputs,
                                                         mx::array& out) {
    std::vector<char> copy;
    kernels::embed(static_cast<const int32_t*>(dense_input(inputs[0], copy)),
                   static_cast<int64_t>(inputs[0].size()), weights->matrix(),
                   {out.data<void>(), type, weights->depth()});
  };
  return make_node(
      {.name = "embed", .inputs = {ids}, .shape = std::move(shape), .dtype = dtype, .work = work});
}

}  // namespace pomona::ops
