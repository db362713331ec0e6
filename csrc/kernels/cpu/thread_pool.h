// A few threads that wait for kernels to share out work.
//
// Thread-safety: `run` may be called from any thread; concurrent calls take turns. It must not be
// called from inside a task. Ownership: one pool per process, never destroyed, because a step may
// still be running while the interpreter exits.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pomona::kernels {

// A callable without ownership: what it refers to must outlive the call.
template <typename Signature>
class FunctionRef;

template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  FunctionRef(const F& f)  // NOLINT: implicit on purpose
      : object_(&f), call_([](const void* object, Args... args) -> R {
          return (*static_cast<const F*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  const void* object_;
  R (*call_)(const void*, Args...);
};

class ThreadPool {
 public:
  using Body = FunctionRef<void(int64_t, int64_t)>;

  // The calling thread counts as one; the others are started here.
  explicit ThreadPool(int threads);

  // The pool of the process, with `configured_threads()` threads, which it starts when first used.
  static ThreadPool& shared();

  // As many threads as the process may use cores, or POMONA_CPU_THREADS of them. Throws
  // std::runtime_error when that is no number from 1 to the usable cores.
  static int configured_threads();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on pieces of at most `grain` that together make [0, count), each once,
  // and returns when all are done. Every thread walks its own contiguous part and then takes pieces
  // from the end of others' (streams of memory stay in order). A thread that comes too late takes
  // no part, and nobody waits for it. `body` must not throw; at most 2^31 pieces.
  void run(int64_t count, int64_t grain, Body body);

 private:
  static constexpr size_t kLine = 128;  // of cache; the next one is fetched along with it

  // The pieces that are left of one thread's part: the first in the low half, the end in the high.
  struct alignas(kLine) Part {
    std::atomic<uint64_t> left{0};
  };

  void work(size_t self);
  uint64_t next_round(uint64_t seen);
  void take_pieces(size_t self) const noexcept;
  void keep_off_this_core();

  std::vector<std::thread> workers_;
  std::mutex turn_;  // held for the whole of a run
  [[maybe_unused]] int callers_core_ = -1;

  // What a run is about. Written while the gate is closed and nobody is inside.
  std::unique_ptr<Part[]> parts_;
  const Body* body_ = nullptr;
  int64_t count_ = 0, grain_ = 1;

  // Number of the round (bits 32 to 63), whether it is open to latecomers (bit 31), and how many
  // workers are inside: one value, so that nobody can slip in after the closing.
  alignas(kLine) std::atomic<uint64_t> gate_{0};

  alignas(kLine) std::atomic<int> sleepers_{0};  // raised before they look at the gate again
  std::mutex sleep_;
  std::condition_variable wake_;
};

}  // namespace pomona::kernels
