#include "ops/gated_mlp.h"

#include <utility>

#include "kernels/cpu/decoder_layer.h"
#include "mlx/utils.h"
#include "ops/require.h"
#include "ops/row_primitive.h"

namespace pomona::ops {

namespace mx = mlx::core;

kernels::Activation activation_of(const std::string& name, const char* what) {
  using kernels::Activation;
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"silu", Activation::kSilu},
      {"gelu", Activation::kGelu},
      {"gelu_tanh", Activation::kGeluTanh},
      {"relu2", Activation::kRelu2},
      {"swiglu_oai", Activation::kSwigluOai},
  };
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  Require{what}(false, "activation ", name, " is not silu, gelu, gelu_tanh, relu2 or swiglu_oai");
  return Activation::kSilu;
}

kernels::Linear linear_of(const Weights& weights, int64_t expert) {
  return {weights.matrix(expert), weights.bias(expert)};
}

GatedMlp::GatedMlp(SharedWeights gate, SharedWeights up, SharedWeights down,
                   const std::string& activation)
    : gate_(std::move(gate)), up_(std::move(up)), down_(std::move(down)) {
  constexpr Require require{"GatedMlp"};
  for (const SharedWeights& w : {gate_, up_, down_}) {
    require(!w || w->experts() == 0, "weights must be single matrices, got a stack of ",
            w ? w->experts() : 0);
  }
  require(!gate_ || (gate_->rows() == up_->rows() && gate_->depth() == up_->depth()), "gate is [",
          gate_ ? gate_->rows() : 0, ", ", gate_ ? gate_->depth() : 0, "], up [", up_->rows(), ", ",
          up_->depth(), "]");
  require(down_->depth() == up_->rows() && down_->rows() == up_->depth(), "up is [", up_->rows(),
          ", ", up_->depth(), "], down [", down_->rows(), ", ", down_->depth(), "]");
  view_.activation = activation_of(activation, "GatedMlp");
  require(gate_ || view_.activation != kernels::Activation::kSwigluOai, "swiglu_oai needs a gate");
  if (gate_) view_.gate = linear_of(*gate_);
  view_.up = linear_of(*up_);
  view_.down = linear_of(*down_);
}

mx::array gated_mlp(const mx::array& x, std::shared_ptr<const GatedMlp> mlp) {
  constexpr Require require{"gated_mlp"};
  require(x.ndim() > 0 && x.shape(-1) == mlp->hidden(), "x has shape ", x.shape(),
          ", expected [..., ", mlp->hidden(), "]");
  return row_primitive(
      "gated_mlp", {x}, x.shape(),
      [mlp = std::move(mlp)](const auto&, const kernels::Rows& rows, const kernels::Target& out) {
        kernels::gated_mlp(mlp->view(), rows, out);
      });
}

}  // namespace pomona::ops
