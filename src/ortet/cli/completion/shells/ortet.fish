# Completion of ortet for fish. In ~/.config/fish/config.fish:  ortet completion fish | source
function __ortet_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] _complete fish $words "$current" 2>/dev/null)
    for line in $lines[2..-1]
        echo $line
    end
    switch "$lines[1]"
        case files
            __fish_complete_path "$current"
        case dirs
            __fish_complete_directories "$current"
    end
end
complete -c ortet -e
complete -c ortet -f -k -a '(__ortet_complete)'
