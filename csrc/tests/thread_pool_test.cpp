// Also meant for a build with -DCMAKE_CXX_FLAGS=-fsanitize=thread.

#include "kernels/cpu/thread_pool.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using pomona::kernels::ThreadPool;

namespace {

// Pools are never destroyed.
ThreadPool& pool_of(int threads) {
  static std::array<ThreadPool*, 9> pools{};
  if (pools[threads] == nullptr) pools[threads] = new ThreadPool(threads);
  return *pools[threads];
}

void waste(int64_t turns) {
  for (int64_t i = 0; i < turns; i++) asm volatile("" ::: "memory");
}

// Plain ints on purpose: a piece that ran twice or whose writes are not seen is a race.
void check_run(ThreadPool& pool, int64_t count, int64_t grain, int64_t uneven) {
  std::vector<int> done(count);
  pool.run(count, grain, [&](int64_t begin, int64_t end) {
    CHECK(begin < end && end - begin <= grain);
    for (int64_t i = begin; i < end; i++) {
      done[i]++;
      waste(uneven * (i % 7 == 0));
    }
  });
  for (int64_t i = 0; i < count; i++) CHECK(done[i] == 1);
}

void test_each_index_once() {
  for (int threads = 1; threads <= 8; threads++) {
    for (int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000}) {
      for (int64_t grain : {1, 3, 8, 2000}) {
        for (int64_t uneven : {0, 3000}) check_run(pool_of(threads), count, grain, uneven);
      }
    }
  }
}

void test_many_short_runs() {
  for (int threads : {2, 3, 8}) {
    for (int i = 0; i < 5000; i++) check_run(pool_of(threads), i % 13, 1 + i % 3, i % 2 * 50);
  }
}

void test_workers_that_sleep_and_wake() {
  for (int i = 0; i < 30; i++) {
    std::this_thread::sleep_for(std::chrono::microseconds(100 + i * 50));
    check_run(pool_of(4), 100, 1, 1000);
  }
}

void test_concurrent_callers_take_turns() {
  ThreadPool& pool = pool_of(4);
  std::atomic<int> running{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; c++) {
    callers.emplace_back([&, c] {
      for (int i = 0; i < 500; i++) {
        std::vector<int64_t> squares(50 + c);
        std::atomic<bool> alone{true};
        pool.run(50 + c, 2, [&](int64_t begin, int64_t end) {
          // Pieces of one run overlap; those of two runs must not.
          const int before = running.fetch_add(1 << (8 * c));
          if (before & ~(0xff << (8 * c))) alone = false;
          for (int64_t j = begin; j < end; j++) squares[j] = j * j;
          running.fetch_sub(1 << (8 * c));
        });
        CHECK(alone);
        for (int64_t j = 0; j < 50 + c; j++) CHECK(squares[j] == j * j);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void test_a_run_sees_what_earlier_runs_wrote() {
  std::vector<int64_t> sums(64, 0);
  for (int round = 1; round <= 300; round++) {
    std::vector<int64_t> before = sums;
    pool_of(4).run(64, 1, [&](int64_t begin, int64_t) { sums[begin] = before[63 - begin] + 1; });
  }
  for (int64_t sum : sums) CHECK(sum == 300);
}

void test_number_of_threads() {
  const auto configured = [](const char* value) {
    setenv("POMONA_CPU_THREADS", value, 1);
    return ThreadPool::configured_threads();
  };
  const int cores = configured("");
  CHECK(cores >= 1);
  CHECK(configured("1") == 1);
  CHECK(configured(std::to_string(cores).c_str()) == cores);
  for (const char* wrong : {"0", "-1", "two", "1.5", "1 ", "100000", "99999999999999999999"}) {
    CHECK_THROWS(configured(wrong), std::runtime_error);
  }
  unsetenv("POMONA_CPU_THREADS");
  CHECK(ThreadPool::configured_threads() == cores);
}

}  // namespace

int main() {
  return run_tests({
      {"number of threads", test_number_of_threads},
      {"each index once", test_each_index_once},
      {"many short runs", test_many_short_runs},
      {"workers that sleep and wake", test_workers_that_sleep_and_wake},
      {"concurrent callers take turns", test_concurrent_callers_take_turns},
      {"a run sees what earlier runs wrote", test_a_run_sees_what_earlier_runs_wrote},
  });
}
