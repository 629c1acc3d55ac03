# Language level, warnings and sanitizers, for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Build type of the sanitizer presets: fast enough to run every test, TARN_DCHECK on.
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g")

set(TARN_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
option(TARN_WERROR "Treat warnings as errors" ON)

# The same expression gives the same bits with every compiler: no contraction behind our back,
# fused multiply-adds are written where they are wanted.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wno-psabi -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict)  # false alarms on std::string in gcc 12 (gcc bug 105651)
endif()
if(TARN_WERROR)
  add_compile_options(-Werror)
endif()
if(TARN_SANITIZE)
  add_compile_options(-fsanitize=${TARN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TARN_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc's flow analysis gives false alarms in instrumented code; the other presets keep it.
    add_compile_options(-Wno-maybe-uninitialized)
    if(TARN_SANITIZE MATCHES "thread")
      # Fences inside Boost.Asio, which ThreadSanitizer ignores: its mutexes give the same order.
      add_compile_options(-Wno-tsan)
      if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
        add_compile_options(-fno-tree-sra)  # gcc 12's crashes on instrumented state_transition_step
      endif()
    endif()
  endif()
endif()
if(TARN_FUZZ)
  # Coverage counters in every library; the targets of tests/fuzz add libFuzzer's main.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
