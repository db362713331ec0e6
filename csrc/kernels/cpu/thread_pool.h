// A few threads that wait for kernels to share out work.
//
// Thread-safety: `run` may be called from any thread; concurrent calls take turns. It must not be
// called from inside a task. Ownership: one pool per process, never destroyed, because a step may
// still be running while the interpreter exits.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pomona::kernels {

class ThreadPool {
 public:
  // The calling thread counts as one; the others are started here.
  explicit ThreadPool(int threads);

  // As many threads as the process may use cores.
  static ThreadPool& shared();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(0) ... task(count - 1), each once, and returns when all are done.
  void run(int64_t count, const std::function<void(int64_t)>& task);

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
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t count_ = 0;

  std::atomic<uint64_t> round_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> joined_{0};
};

}  // namespace pomona::kernels
