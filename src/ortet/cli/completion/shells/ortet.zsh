#compdef ortet
# Completion of ortet for zsh. In ~/.zshrc, behind compinit:  eval "$(ortet completion zsh)"
_ortet() {
  local -a lines found
  local line value
  lines=("${(@f)$(${(Q)words[1]/#\~\//$HOME/} _complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
  for line in "${(@)lines[2,-1]}"; do
    value=${${line%%$'\t'*}//:/\\:}
    found+=("$value:${line#*$'\t'}")
  done
  if (( $#found )); then
    case $lines[1] in
      open) _describe -V ortet found -S '' ;;
      *) _describe -V ortet found ;;
    esac
  fi
  case $lines[1] in
    files) _files ;;
    dirs) _files -/ ;;
  esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _ortet "$@"
else
  compdef _ortet ortet
fi
