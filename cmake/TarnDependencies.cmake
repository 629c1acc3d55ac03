# Third-party libraries, each found once; scripts/setup installs them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
# Headers only: base/json.cpp instantiates the parser itself, so no compiled Boost library is needed.
find_package(Boost 1.81 REQUIRED CONFIG)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(sqlite REQUIRED IMPORTED_TARGET sqlite3)
# Not find_package(dnnl): Debian's package file asks for OpenCL, which its CPU library never uses.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})

if(TARN_TRAIN)
  include(TarnTorch)
endif()
if(TARN_TESTS)
  find_package(GTest REQUIRED)
endif()
if(TARN_BENCH)
  find_package(benchmark REQUIRED)
endif()
