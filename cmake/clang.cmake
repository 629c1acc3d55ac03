# Toolchain of the clang preset: the first clang++ on the path, newest name first.
find_program(TARN_CLANGXX NAMES clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15
                                clang++-14)
if(NOT TARN_CLANGXX)
  message(FATAL_ERROR "no clang++ (14 or newer) was found; on Debian: apt-get install clang")
endif()
set(CMAKE_CXX_COMPILER ${TARN_CLANGXX})
