# Completion of ortet for bash. In ~/.bashrc:  eval "$(ortet completion bash)"
_ortet() {
  local program=$1 lines
  [[ $program == "~/"* ]] && program=$HOME/${program:2}
  mapfile -t lines < <("$program" _complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
  COMPREPLY=("${lines[@]:1}")
  case ${lines[0]} in
    files) compopt -o default ;;
    dirs) compopt -o dirnames ;;
    open) compopt -o nospace ;;
  esac
}
complete -o nosort -F _ortet ortet 2>/dev/null || complete -F _ortet ortet
