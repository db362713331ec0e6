// One pool of threads for pomona._ops and libpomona_blas.so: the waiting threads of two pools would
// take the cores from each other.

#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace pomona::kernels {

using RunOnPool = void(int64_t count, int64_t grain, ThreadPool::Body body);

// Makes libpomona_blas.so, if it is loaded, use the pool of the caller's library from now on.
void share_pool_with_blas();

}  // namespace pomona::kernels
