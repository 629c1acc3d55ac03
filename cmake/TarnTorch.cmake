# libtorch for tarn-train: an installed one that the user points at (Torch_DIR, CMAKE_PREFIX_PATH)
# wins over the wheel that scripts/setup puts into .venv. Sets TORCH_INSTALL_PREFIX,
# TORCH_INCLUDE_DIRS, TORCH_CXX_FLAGS and TORCH_LIBRARIES, as torch's own package file does.
find_package(Torch 2.6 QUIET)
if(Torch_FOUND)
  message(STATUS "libtorch: ${TORCH_INSTALL_PREFIX}")
  return()
endif()

file(GLOB TORCH_INSTALL_PREFIX ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
if(NOT EXISTS "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "libtorch was not found, and tarn-train needs it. Either run ./scripts/setup (installs the "
    "torch wheel into .venv), or pass -DTorch_DIR=<libtorch>/share/cmake/Torch, or configure "
    "with -DTARN_TRAIN=OFF to build only the runtime.")
endif()
message(STATUS "libtorch: ${TORCH_INSTALL_PREFIX}")

# The wheel is linked by hand: on some platforms pip gives a CUDA build, whose package file demands
# the CUDA toolkit, while the CPU half of it (all that training on CPUs needs) does not.
set(TORCH_INCLUDE_DIRS ${TORCH_INSTALL_PREFIX}/include
                       ${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include)
set(TORCH_CXX_FLAGS "")
foreach(part torch_cpu c10)
  add_library(tarn_${part} SHARED IMPORTED)
  set_target_properties(tarn_${part} PROPERTIES
                        IMPORTED_LOCATION ${TORCH_INSTALL_PREFIX}/lib/lib${part}.so)
endforeach()
set(TORCH_LIBRARIES tarn_torch_cpu tarn_c10)
