#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

// Unlike assert, checks also hold in release builds.
#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

#define CHECK_THROWS(expression, Error)                                                     \
  do {                                                                                      \
    bool thrown = false;                                                                    \
    try {                                                                                   \
      static_cast<void>(expression);                                                        \
    } catch (const Error&) {                                                                \
      thrown = true;                                                                        \
    }                                                                                       \
    if (!thrown) {                                                                          \
      std::fprintf(stderr, "%s:%d: %s did not throw %s\n", __FILE__, __LINE__, #expression, \
                   #Error);                                                                 \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (false)

// Runs the tests by name, so that a crash tells which one it was.
inline int run_tests(const std::vector<std::pair<const char*, std::function<void()>>>& tests) {
  for (const auto& [name, test] : tests) {
    std::printf("%s\n", name);
    std::fflush(stdout);
    test();
  }
  return 0;
}
