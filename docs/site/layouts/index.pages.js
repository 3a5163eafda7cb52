{{- $pages := slice -}}
{{- range site.RegularPages -}}
  {{- $pages = $pages | append (dict "title" (partial "title.html" . | plainify | htmlUnescape) "at" (strings.TrimPrefix "/" .RelPermalink) "text" (.Plain | htmlUnescape)) -}}
{{- end -}}
const pages = {{ $pages | jsonify }}
