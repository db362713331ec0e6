// cblas_sgemm for MLX on Linux, over the OpenBLAS of the scipy-openblas32 package.
//
// MLX's Linux wheel imports cblas_sgemm from a reference BLAS. Loaded with global symbols before
// mlx.core, this library answers instead. scipy-openblas32 prefixes its symbols, hence the shim.
// python/pomona/worker/blas.py loads it.
//
// OpenBLAS runs with one thread and we share out the columns or rows: its own threads wait for each
// other in a busy loop, which makes a product a hundred times slower as soon as another program
// wants a core. The pieces depend on the shape alone, so the number of threads changes no bit.
//
// The threads are those of pomona._ops once that is loaded, else a pool of this library.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/blas_pool.h"
#include "kernels/cpu/thread_pool.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace pomona::kernels {
namespace {

using Sgemm = void(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

// Of CBLAS.
constexpr int kRowMajor = 101, kNoTrans = 111;
[[maybe_unused]] constexpr int kTrans = 112;

// Multiply-adds below which waking other threads costs more than it saves.
constexpr int64_t kThreadedWork = 1 << 20;

// A product is cut into at most kPieces pieces, each a multiple of kPieceStep wide.
constexpr int kPieces = 32, kPieceStep = 96;

void run_on_own_pool(int64_t count, int64_t grain, ThreadPool::Body body) {
  ThreadPool::shared().run(count, grain, body);
}

std::atomic<RunOnPool*> run{run_on_own_pool};
Sgemm* openblas = nullptr;
std::atomic<uint64_t> calls{0};

struct Product {
  int trans_a, trans_b;
  int m, n, k;
  float alpha, beta;
  const float *a, *b;
  float* c;
  int64_t lda, ldb, ldc;
};

// Calls body(first, count) over pieces of [0, total), on several threads when there is enough to
// do.
template <typename Body>
void share_out(const Product& p, int total, int piece, const Body& body) {
  const int pieces = (total + piece - 1) / piece;
  if (pieces < 2 || int64_t{p.m} * p.n * p.k < kThreadedWork) return body(0, total);
  run.load(std::memory_order_relaxed)(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int first = static_cast<int>(i) * piece;
      body(first, std::min(piece, total - first));
    }
  });
}

void multiply_with_openblas(const Product& p) {
  const int longer = std::max(p.m, p.n);
  const int piece = std::max(1, longer / (kPieces * kPieceStep)) * kPieceStep;
  const auto call = [&](int m, int n, const float* a, const float* b, float* c) {
    openblas(kRowMajor, p.trans_a, p.trans_b, m, n, p.k, p.alpha, a, p.lda, b, p.ldb, p.beta, c,
             p.ldc);
  };
  if (p.n >= p.m) {
    const int64_t step = p.trans_b == kNoTrans ? 1 : p.ldb;
    share_out(p, p.n, piece, [&](int first, int count) {
      call(p.m, count, p.a, p.b + first * step, p.c + first);
    });
  } else {
    const int64_t step = p.trans_a == kNoTrans ? p.lda : 1;
    share_out(p, p.m, piece, [&](int first, int count) {
      call(count, p.n, p.a + first * step, p.b, p.c + first * p.ldc);
    });
  }
}

#if defined(__x86_64__)

// Few rows against a transposed matrix: what decoding does. Reading B is all the time there is,
// which this loop does two to five times as fast as OpenBLAS (AVX2 code of it does not), and each
// element of C is summed in one order whatever the number of rows: 16 lanes over K, folded in
// halves, then the rest of K.

constexpr int kFewRows = 8;
constexpr int kLanes = 16, kRows = 4, kColumns = 4;
constexpr int kPrefetchFloats = 256;
constexpr int kPieceFloats = 1 << 17;  // of B: long enough to stream

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
}

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

#define INLINE inline __attribute__((always_inline))

// Rows [i, i + Rows) of A against Columns rows of B from j on.
template <int Rows, int Columns>
INLINE void multiply_tile(const Product& p, int i, int j) {
  const float *a = p.a + i * p.lda, *b = p.b + j * p.ldb;
  Lanes sums[Columns][Rows] = {};
  int d = 0;
  for (; d + kLanes <= p.k; d += kLanes) {
    Lanes x[Rows];
    for (int r = 0; r < Rows; r++) __builtin_memcpy(&x[r], a + r * p.lda + d, sizeof(Lanes));
    for (int c = 0; c < Columns; c++) {
      Lanes y;
      __builtin_memcpy(&y, b + c * p.ldb + d, sizeof(Lanes));
      __builtin_prefetch(b + c * p.ldb + d + kPrefetchFloats);
      for (int r = 0; r < Rows; r++) sums[c][r] += x[r] * y;
    }
  }
  for (int c = 0; c < Columns; c++) {
    for (int r = 0; r < Rows; r++) {
      float lanes[kLanes];
      __builtin_memcpy(lanes, &sums[c][r], sizeof(lanes));
      for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
      }
      float sum = lanes[0];
      for (int e = d; e < p.k; e++) sum += a[r * p.lda + e] * b[c * p.ldb + e];
      float* to = p.c + (i + r) * p.ldc + j + c;
      *to = p.alpha * sum + (p.beta == 0.0f ? 0.0f : p.beta * *to);
    }
  }
}

template <int Columns>
INLINE void multiply_columns(const Product& p, int j) {
  int i = 0;
  for (; i + kRows <= p.m; i += kRows) multiply_tile<kRows, Columns>(p, i, j);
  switch (p.m - i) {
    case 3:
      return multiply_tile<3, Columns>(p, i, j);
    case 2:
      return multiply_tile<2, Columns>(p, i, j);
    case 1:
      return multiply_tile<1, Columns>(p, i, j);
  }
}

__attribute__((target("avx512f"))) void multiply_few_rows(const Product& p, int first, int count) {
  int j = first;
  for (; j + kColumns <= first + count; j += kColumns) multiply_columns<kColumns>(p, j);
  for (; j < first + count; j++) multiply_columns<1>(p, j);
}

#endif

void multiply(const Product& p) {
#if defined(__x86_64__)
  if (has_avx512() && p.m <= kFewRows && p.trans_a == kNoTrans && p.trans_b == kTrans) {
    const int piece = std::max(1, kPieceFloats / std::max(p.k, 1) / kColumns) * kColumns;
    return share_out(p, p.n, piece,
                     [&](int first, int count) { multiply_few_rows(p, first, count); });
  }
#endif
  multiply_with_openblas(p);
}

}  // namespace
}  // namespace pomona::kernels

using namespace pomona::kernels;

// Opens OpenBLAS at `path`. Returns null, or what went wrong. Call once, before any product.
EXPORT const char* pomona_blas_init(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  const auto set_threads =
      reinterpret_cast<void (*)(int)>(dlsym(library, "scipy_openblas_set_num_threads"));
  if (set_threads == nullptr) return dlerror();
  set_threads(1);
  openblas = reinterpret_cast<Sgemm*>(dlsym(library, "scipy_cblas_sgemm"));
  return openblas == nullptr ? dlerror() : nullptr;
}

// From now on products are shared out by `on_other_pool`.
EXPORT void pomona_blas_use_pool(RunOnPool* on_other_pool) {
  run.store(on_other_pool, std::memory_order_relaxed);
}

// How many products came through here.
EXPORT uint64_t pomona_blas_calls() { return calls; }

EXPORT void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                        const float* a, int lda, const float* b, int ldb, float beta, float* c,
                        int ldc) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (order != kRowMajor) {
    return openblas(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  multiply({trans_a, trans_b, m, n, k, alpha, beta, a, b, c, lda, ldb, ldc});
}
