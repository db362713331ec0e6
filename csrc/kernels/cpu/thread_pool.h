// A few threads that wait for kernels to share out work.
//
// Thread-safety: `run` may be called from any thread; concurrent calls take turns. It must not be
// called from inside a task. Ownership: one pool per process, never destroyed, because a step may
// still be running while the interpreter exits.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
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
  // The calling thread counts as one; the others are started here.
  explicit ThreadPool(int threads);

  // As many threads as the process may use cores, or POMONA_CPU_THREADS of them.
  static ThreadPool& shared();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on pieces of at most `grain` that together make [0, count), each once,
  // and returns when all are done. Every thread walks its own contiguous part and then takes pieces
  // from the end of others' (streams of memory stay in order).
  void run(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

 private:
  void work();
  void take_tasks();

  std::vector<std::thread> workers_;
  std::mutex turn_;  // held for the whole of a run

  // A run is open while it has tasks left; a worker that wakes up too late does not join it, so a
  // run never waits for a thread that does not work.
  std::mutex state_;
  std::condition_variable wake_;
  bool open_ = false;
  const FunctionRef<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t count_ = 0, grain_ = 1;

  std::atomic<uint64_t> round_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> joined_{0};
};

}  // namespace pomona::kernels
