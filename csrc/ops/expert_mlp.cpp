#include "ops/expert_mlp.h"

#include <utility>

#include "mlx/utils.h"
#include "ops/dense_input.h"
#include "ops/require.h"
#include "ops/row_primitive.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

kernels::Scoring scoring_of(const std::string& name) {
  if (name == "softmax") return kernels::Scoring::kSoftmax;
  if (name == "topk_softmax") return kernels::Scoring::kTopkSoftmax;
  Require{"ExpertMlp"}(name == "sigmoid", "scoring ", name,
                       " is not softmax, topk_softmax or sigmoid");
  return kernels::Scoring::kSigmoid;
}

}  // namespace

Experts::Experts(SharedWeights gate, SharedWeights up, SharedWeights down,
                 const std::string& activation)
    : gate_(std::move(gate)), up_(std::move(up)), down_(std::move(down)) {
  constexpr Require require{"Experts"};
  const int64_t count = up_->experts();
  require(count > 0 && gate_->experts() == count && down_->experts() == count,
          "gate, up and down must be stacks of equally many matrices, got ", gate_->experts(), ", ",
          count, " and ", down_->experts());
  require(gate_->rows() == up_->rows() && gate_->depth() == up_->depth(), "gate is [",
          gate_->rows(), ", ", gate_->depth(), "], up [", up_->rows(), ", ", up_->depth(), "]");
  require(down_->depth() == up_->rows() && down_->rows() == up_->depth(), "up is [", up_->rows(),
          ", ", up_->depth(), "], down [", down_->rows(), ", ", down_->depth(), "]");
  const kernels::Activation kind = activation_of(activation, "Experts");
  for (int64_t e = 0; e < count; e++) {
    mlps_.push_back({linear_of(*gate_, e), linear_of(*up_, e), linear_of(*down_, e), kind});
  }
}

ExpertMlp::ExpertMlp(Parts parts) : parts_(std::move(parts)) {
  constexpr Require require{"ExpertMlp"};
  const Weights& router = *parts_.router;
  const int64_t count = parts_.experts->count(), width = hidden();
  require(router.experts() == 0 && router.rows() == count && router.depth() == width,
          "the router is [", router.rows(), ", ", router.depth(), "], expected [", count, ", ",
          width, "]");
  require(parts_.top_k >= 1 && parts_.top_k <= count, "top_k is ", parts_.top_k, ", there are ",
          count, " experts");
  require(!parts_.shared || parts_.shared->hidden() == width, "the experts have width ", width,
          ", the shared MLP ", parts_.shared ? parts_.shared->hidden() : 0);
  const SharedWeights& gate = parts_.shared_gate;
  require(!gate || parts_.shared, "shared_gate needs a shared MLP");
  require(!gate || (gate->experts() == 0 && gate->rows() == 1 && gate->depth() == width),
          "shared_gate is [", gate ? gate->rows() : 0, ", ", gate ? gate->depth() : 0,
          "], expected [1, ", width, "]");
  if (gate) shared_gate_ = linear_of(*gate);
  view_ = {
      .router = linear_of(router),
      .experts = parts_.experts->view(),
      .top_k = parts_.top_k,
      .scoring = scoring_of(parts_.scoring),
      .normalise = parts_.normalise,
      .shared = parts_.shared ? &parts_.shared->view() : nullptr,
      .shared_gate = gate ? &shared_gate_ : nullptr,
  };
}

mx::array expert_mlp(const mx::array& x, std::shared_ptr<const ExpertMlp> mlp) {
  constexpr Require require{"expert_mlp"};
  require(x.ndim() > 0 && x.shape(-1) == mlp->hidden(), "x has shape ", x.shape(),
          ", expected [..., ", mlp->hidden(), "]");
  return row_primitive(
      "expert_mlp", {x}, x.shape(),
      [mlp = std::move(mlp)](const auto&, const kernels::Rows& rows, const kernels::Target& out) {
        kernels::expert_mlp(mlp->view(), rows, nullptr, nullptr, 1.0f, kernels::no_rows(), out);
      });
}

mx::array switch_glu(const mx::array& x, std::shared_ptr<const Experts> experts,
                     const mx::array& indices) {
  constexpr Require require{"switch_glu"};
  require(x.ndim() > 0 && x.shape(-1) == experts->hidden(), "x has shape ", x.shape(),
          ", expected [..., ", experts->hidden(), "]");
  require(indices.dtype() == mx::int32 || indices.dtype() == mx::uint32,
          "indices must be int32 or uint32, got ", indices.dtype());
  require(indices.ndim() == x.ndim() &&
              std::equal(x.shape().begin(), x.shape().end() - 1, indices.shape().begin()),
          "indices have shape ", indices.shape(), ", x ", x.shape());
  mx::Shape shape = indices.shape();
  shape.push_back(x.shape(-1));
  return row_primitive("switch_glu", {x, indices}, std::move(shape),
                       [experts = std::move(experts), k = indices.shape(-1)](
                           const std::vector<mx::array>& views, const kernels::Rows& rows,
                           const kernels::Target& out) {
                         std::vector<char> buffer;
                         const auto* ids =
                             static_cast<const int32_t*>(dense_input(views[1], buffer));
                         kernels::switch_glu(experts->view(), rows, ids, k, out);
                       });
}

}  // namespace pomona::ops
