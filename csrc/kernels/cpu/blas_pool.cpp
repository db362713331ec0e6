#include "kernels/cpu/blas_pool.h"

#include <dlfcn.h>

namespace pomona::kernels {

void share_pool_with_blas() {
  const auto use_pool =
      reinterpret_cast<void (*)(RunOnPool*)>(dlsym(RTLD_DEFAULT, "pomona_blas_use_pool"));
  if (use_pool == nullptr) return;
  use_pool([](int64_t count, int64_t grain, ThreadPool::Body body) {
    ThreadPool::shared().run(count, grain, body);
  });
}

}  // namespace pomona::kernels
