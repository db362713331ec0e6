#include "ops/linear.h"

#include <stdexcept>
#include <utility>

#include "kernels/cpu/embed.h"
#include "kernels/cpu/project.h"
#include "kernels/cpu/variant.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/utils.h"
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
  kernels::kernels();
  const Require require{"embed"};
  require(weights->experts() == 0, "the weights are a stack of ", weights->experts(), " matrices");
  require(ids.dtype() == mx::int32 || ids.dtype() == mx::uint32,
          "ids must be int32 or uint32, got ", ids.dtype());
  const mx::Shape shape = with_axis(ids.shape(), weights->depth());
  const mx::Dtype dtype = weights->dtype();
  return mx::array(shape, dtype, std::make_shared<Embed>(mx::to_stream({}), std::move(weights)),
                   {ids});
}

std::vector<mx::Shape> Embed::output_shapes(const std::vector<mx::array>& inputs) {
  return {with_axis(inputs[0].shape(), weights_->depth())};
}

void Embed::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  outputs[0].set_data(mx::allocator::malloc(outputs[0].nbytes()));
  mx::cpu::get_command_encoder(stream()).dispatch([ids = mx::array::unsafe_weak_copy(inputs[0]),
                                                   out = mx::array::unsafe_weak_copy(outputs[0]),
                                                   weights = weights_]() mutable {
    std::vector<char> copy;
    kernels::embed(static_cast<const int32_t*>(dense_input(ids, copy)),
                   static_cast<int64_t>(ids.size()), weights->matrix(),
                   {out.data<void>(), float_of(out.dtype(), "out"), weights->depth()});
  });
}

void Embed::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("embed has no GPU kernel: use the model's own layer");
}

}  // namespace pomona::ops
