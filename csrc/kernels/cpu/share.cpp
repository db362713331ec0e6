#include "kernels/cpu/share.h"

namespace pomona::kernels {

void share(int64_t work, int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (work >= kThreadedWork) {
    ThreadPool::shared().run(count, grain, body);
  } else if (count > 0) {
    body(0, count);
  }
}

}  // namespace pomona::kernels
