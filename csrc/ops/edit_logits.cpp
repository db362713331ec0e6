#include "ops/edit_logits.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/cpu/thread_pool.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/utils.h"
#include "ops/cpu_stream.h"
#include "ops/require.h"

namespace pomona::ops {
namespace {

namespace mx = mlx::core;

constexpr Require require{"edit_logits"};

void check(const mx::array& logits, const std::vector<kernels::LogitEdits>& edits,
           const std::optional<mx::array>& unread) {
  require(logits.ndim() == 2, "logits must be [W, V], got shape ", logits.shape());
  float_of(logits.dtype(), "edit_logits: logits");
  require(edits.size() == static_cast<size_t>(logits.shape(0)), "there are ", logits.shape(0),
          " rows of logits but ", edits.size(), " edits");
  if (unread) {
    require(unread->ndim() == 1 && unread->dtype() == mx::int32,
            "unread must be int32 [N], got shape ", unread->shape(), " of ", unread->dtype());
  }
  const int count = unread ? unread->shape(0) : 0;
  for (size_t i = 0; i < edits.size(); i++) {
    require(edits[i].unread < count, "edits[", i, "] takes unread token ", edits[i].unread, " of ",
            count);
  }
}

}  // namespace

mx::array edit_logits(const mx::array& logits, std::vector<kernels::LogitEdits> edits,
                      const std::optional<mx::array>& unread) {
  check(logits, edits, unread);
  std::vector<mx::array> inputs{mx::contiguous(mx::astype(logits, mx::float32))};
  if (unread) inputs.push_back(mx::contiguous(*unread));
  return mx::array(logits.shape(), mx::float32,
                   std::make_shared<EditLogits>(cpu_stream(), std::move(edits)), std::move(inputs));
}

std::vector<mx::Shape> EditLogits::output_shapes(const std::vector<mx::array>& inputs) {
  return {inputs[0].shape()};
}

void EditLogits::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  mx::array& out = outputs[0];
  out.set_data(mx::allocator::malloc(out.nbytes()));
  std::vector<mx::array> views;
  for (const mx::array& x : inputs) views.push_back(mx::array::unsafe_weak_copy(x));
  mx::cpu::get_command_encoder(stream()).dispatch(
      [views = std::move(views), edits = edits_, to = out.data<float>()] {
        const size_t vocab = views[0].shape(1);
        const float* from = views[0].data<float>();
        std::span<const int32_t> unread;
        if (views.size() > 1) unread = {views[1].data<int32_t>(), views[1].size()};
        const auto edit_some = [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; r++) {
            const std::span row(to + r * vocab, vocab);
            std::copy_n(from + r * vocab, vocab, row.data());
            kernels::edit_logits(edits[r], unread, row);
          }
        };
        kernels::ThreadPool::shared().run(static_cast<int64_t>(edits.size()), 1, edit_some);
      });
}

void EditLogits::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("edit_logits runs on the CPU only");
}

}  // namespace pomona::ops
