# Whether the CUDA device is built, and how. Sets PLIMSOLL_HAS_CUDA and cuda_device(TARGET), which adds kernels/cuda to
# a target. Linked statically: the runtime (it starts on a machine without a driver). Everything else, the driver,
# cuBLASLt, cuDNN and NVML, is loaded at run time, so only their headers are needed here.
#
# PLIMSOLL_CUDA_ARCHITECTURES lists compute capabilities: machine code for each, and PTX of the newest for cards to come
# ("90a" has instructions that no other card has, so its PTX is that of 90). One entry builds several times faster; the
# environment variable of the same name gives the first value.
if(PLIMSOLL_SANITIZE OR PLIMSOLL_FUZZ)
  set(PLIMSOLL_CUDA OFF) # the sanitizers and the driver's address space do not go together
endif()
set(cuda_architectures_default "80;86;89;90a")
if(DEFINED ENV{PLIMSOLL_CUDA_ARCHITECTURES})
  set(cuda_architectures_default "$ENV{PLIMSOLL_CUDA_ARCHITECTURES}")
endif()
set(PLIMSOLL_CUDA_ARCHITECTURES "${cuda_architectures_default}" CACHE STRING "Compute capabilities to build for")

set(PLIMSOLL_HAS_CUDA OFF)
if(PLIMSOLL_CUDA)
  find_package(CUDAToolkit QUIET)
endif()
if(NOT PLIMSOLL_CUDA)
  message(STATUS "CUDA is switched off: built for the CPU")
elseif(NOT CUDAToolkit_FOUND)
  message(STATUS "no CUDA: built for the CPU")
elseif(CUDAToolkit_VERSION VERSION_LESS 13.0)
  message(STATUS "CUDA ${CUDAToolkit_VERSION} is too old, 13.0 is needed: built for the CPU")
else()
  find_path(PLIMSOLL_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(PLIMSOLL_CUDNN_INCLUDE cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(PLIMSOLL_CUBLASLT_INCLUDE AND PLIMSOLL_CUDNN_INCLUDE)
    set(PLIMSOLL_HAS_CUDA ON)
    message(STATUS "CUDA ${CUDAToolkit_VERSION}: the CUDA device is built for ${PLIMSOLL_CUDA_ARCHITECTURES}")
  else()
    message(STATUS "CUDA ${CUDAToolkit_VERSION} lacks the headers of cuBLASLt or cuDNN 9: built for the CPU")
  endif()
endif()

if(PLIMSOLL_HAS_CUDA)
  # Architectures are given by hand below: CMake knows the letters of "90a" only from 3.26 on.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  # No -Wshadow: in C++ it finds every function that is called like a struct.
  set(PLIMSOLL_CUDA_FLAGS --threads 0 --compress-mode=size -lineinfo
    -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
  foreach(architecture IN LISTS PLIMSOLL_CUDA_ARCHITECTURES)
    list(APPEND PLIMSOLL_CUDA_FLAGS -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET PLIMSOLL_CUDA_ARCHITECTURES -1 newest)
  string(REGEX REPLACE "[a-z]$" "" newest "${newest}")
  list(APPEND PLIMSOLL_CUDA_FLAGS -gencode=arch=compute_${newest},code=compute_${newest})
endif()

# Adds kernels/cuda to TARGET, a room that is there already.
function(cuda_device TARGET)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.c ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
  target_sources(${TARGET} PRIVATE ${sources})
  target_compile_definitions(${TARGET} PRIVATE PLIMSOLL_HAS_CUDA=1)
  target_compile_options(${TARGET} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${PLIMSOLL_CUDA_FLAGS}>")
  target_include_directories(${TARGET} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${PLIMSOLL_CUBLASLT_INCLUDE}
    ${PLIMSOLL_CUDNN_INCLUDE})
  target_link_libraries(${TARGET} PUBLIC CUDA::cudart_static)
endfunction()
