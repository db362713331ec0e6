#include "ops/cpu_node.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

class CpuPrimitive : public mx::Primitive {
 public:
  explicit CpuPrimitive(std::shared_ptr<const CpuNode> node)
      : Primitive(node->stream), node_(std::move(node)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(node_->name) + " has no GPU kernel: use the CPU device");
  }
  const char* name() const override { return node_->name; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override {
    return {node_->shape};
  }

 private:
  std::shared_ptr<const CpuNode> node_;  // without inputs: MLX holds those
};

void CpuPrimitive::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  node_->allocate(outputs[0]);
  std::vector<mx::array> views;
  for (const mx::array& x : inputs) views.push_back(mx::array::unsafe_weak_copy(x));
  mx::cpu::get_command_encoder(stream()).dispatch(
      [views = std::move(views), out = mx::array::unsafe_weak_copy(outputs[0]),
       node = node_]() mutable { node->work(views, out); });
}

}  // namespace

void allocate_dense(mx::array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

mx::array make_node(CpuNode node) {
  std::vector<mx::array> inputs = std::exchange(node.inputs, {});
  auto shared = std::make_shared<const CpuNode>(std::move(node));
  return mx::array(shared->shape, shared->dtype, std::make_shared<CpuPrimitive>(shared),
                   std::move(inputs));
}

}  // namespace pomona::ops
