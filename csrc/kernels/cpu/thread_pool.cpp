#include "kernels/cpu/thread_pool.h"

#include <algorithm>

#if defined(__linux__)
#include <sched.h>
#endif

namespace pomona::kernels {
namespace {

// About 50 us: the gap between two layers of a step. Waking a sleeper costs about as much.
constexpr int kSpins = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
}

ThreadPool& ThreadPool::shared() {
  static ThreadPool* pool = new ThreadPool(usable_cores());
  return *pool;
}

void ThreadPool::run(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (workers_.empty() || count <= grain) {
    for (int64_t i = 0; i < count; i += grain) body(i, std::min(i + grain, count));
    return;
  }
  std::lock_guard turn(turn_);
  {
    std::lock_guard lock(state_);
    body_ = &body;
    count_ = count;
    grain_ = grain;
    next_ = 0;
    open_ = true;
    round_++;
  }
  wake_.notify_all();
  take_tasks();
  {
    std::lock_guard lock(state_);
    open_ = false;
  }
  for (int spins = 0; joined_ > 0; spins++) {
    spins < kSpins ? pause() : std::this_thread::yield();
  }
}

void ThreadPool::take_tasks() {
  for (int64_t i; (i = next_.fetch_add(grain_)) < count_;)
    (*body_)(i, std::min(i + grain_, count_));
}

void ThreadPool::work() {
  uint64_t seen = 0;
  while (true) {
    for (int spins = 0; round_ == seen && spins < kSpins; spins++) pause();
    {
      std::unique_lock lock(state_);
      wake_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      if (!open_) continue;
      joined_++;
    }
    take_tasks();
    joined_--;
  }
}

}  // namespace pomona::kernels
