// Tells when an array was really computed. The thread that dispatches work may be held up long
// after a step has ended (MLX bounds the tasks in flight), so it cannot take the time itself.

#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "mlx/primitives.h"

namespace pomona::ops {

// One moment, in seconds of the steady clock; 0 until it has come.
//
// Thread-safety: written once by the thread that runs the stamp, read by any.
class Moment {
 public:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  double seconds() const { return seconds_.load(std::memory_order_acquire); }
  void set() { seconds_.store(now(), std::memory_order_release); }

 private:
  std::atomic<double> seconds_{0};
};

// Returns x unchanged; `moment` is set when it has been computed.
mlx::core::array stamp(const mlx::core::array& x, std::shared_ptr<Moment> moment);

// Input: x, whose buffer the output shares.
class Stamp : public mlx::core::Primitive {
 public:
  Stamp(mlx::core::Stream stream, std::shared_ptr<Moment> moment)
      : Primitive(stream), moment_(std::move(moment)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  void eval_gpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outputs) override;
  const char* name() const override { return "Stamp"; }
  std::vector<mlx::core::Shape> output_shapes(const std::vector<mlx::core::array>& inputs) override;

 private:
  std::shared_ptr<Moment> moment_;
};

}  // namespace pomona::ops
