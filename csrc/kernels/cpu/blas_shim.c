/* cblas_sgemm for MLX on Linux, forwarded to the OpenBLAS of the scipy-openblas32 package.
 *
 * MLX's Linux wheel imports cblas_sgemm from a reference BLAS. Loaded with global symbols before
 * mlx.core, this library answers instead. scipy-openblas32 prefixes its symbols, hence the shim.
 * python/pomona/worker/blas.py loads it.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef void Sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

EXPORT Sgemm cblas_sgemm;

static Sgemm* forward_to;
static atomic_ullong calls;

/* Opens OpenBLAS at `path`. Returns NULL, or what went wrong. Call once, before any sgemm. */
EXPORT const char* pomona_blas_init(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
  forward_to = (Sgemm*)dlsym(library, "scipy_cblas_sgemm");
  return forward_to == NULL ? dlerror() : NULL;
}

/* How many products came through here. */
EXPORT unsigned long long pomona_blas_calls(void) { return atomic_load(&calls); }

EXPORT void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                        const float* a, int lda, const float* b, int ldb, float beta, float* c,
                        int ldc) {
  atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
  forward_to(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
