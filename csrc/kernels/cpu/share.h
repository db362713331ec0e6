// Whether work is worth more threads than one.
//
// Thread-safety: as ThreadPool::run.

#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace pomona::kernels {

// Multiply-adds below which sharing work out costs more than it saves (about 10 us).
constexpr int64_t kThreadedWork = 1 << 17;

// Calls body(begin, end) on parts of [0, count), on the calling thread alone where `work`, counted
// in multiply-adds, is too little to wake another.
void share(int64_t work, int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

}  // namespace pomona::kernels
