# Files as part of a program: tarn_embed(target folder file...) adds a source that defines
# tarn::serve::page::files() with what src/<folder> has under these names. Made anew when one changes;
# this file is also the script that makes it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(tarn_embed target folder)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded/${target}_files.cpp)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE inputs)
    string(REPLACE ";" "|" names "${ARGN}")
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}/${folder} -DNAMES=${names}
              -DOUTPUT=${output} -P ${CMAKE_SOURCE_DIR}/cmake/TarnEmbed.cmake
      DEPENDS ${inputs} ${CMAKE_SOURCE_DIR}/cmake/TarnEmbed.cmake
      COMMENT "Embedding ${folder}" VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endfunction()
  return()
endif()

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")

set(entries "")
string(REPLACE "|" ";" names "${NAMES}")
foreach(name IN LISTS names)
  file(READ ${FOLDER}/${name} text)
  file(SHA256 ${FOLDER}/${name} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(REGEX REPLACE ".*\\." "" extension ${name})
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "TarnEmbed: ${name}: no content type is known for .${extension}")
  endif()
  if(text MATCHES "\\)embedded\"")
    message(FATAL_ERROR "TarnEmbed: ${name} holds what ends its literal")
  endif()
  set(path "/page/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  string(APPEND entries "    {\"${path}\"sv, \"${type_${extension}}\"sv, \"\\\"${hash}\\\"\"sv, "
         "R\"embedded(${text})embedded\"sv},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"serve/page/page.h\"

namespace tarn::serve::page {
namespace {

using namespace std::string_view_literals;

constexpr File kFiles[] = {
${entries}};

}  // namespace

std::span<const File> files() { return kFiles; }

}  // namespace tarn::serve::page
")
