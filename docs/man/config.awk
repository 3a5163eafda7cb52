# SPDX-License-Identifier: Apache-2.0
#
# config.awk -v date="January 2, 2026" configs/config.toml: the manual page gpuslice.toml(5), from the comments of the
# configuration that is installed, in which "#" stands right before each key and section, and "# " before what explains them. An
# explanation belongs to the key right below it, or else to the file or to its section.

function escape(text) {
	gsub(/\\/, "\\e", text)
	gsub(/-/, "\\-", text)
	gsub(/"/, "\\(dq", text)
	return text
}
# say writes a paragraph, each sentence on a line of its own, as roff wants it.
function say(text, line, lines, i, n) {
	text = escape(text)
	while (match(text, /[.:?] +[A-Z]/)) {
		lines[++n] = substr(text, 1, RSTART)
		text = substr(text, RSTART + RLENGTH - 1)
	}
	lines[++n] = text
	for (i = 1; i <= n; i++) {
		line = lines[i]
		print (line ~ /^[.']/ ? "\\&" : "") line
	}
}
function paragraph() {
	if (comment == "")
		return
	if (!begins)
		print ".Pp"
	begins = 0
	say(comment)
	comment = ""
}
function close_list() {
	if (listing)
		print ".El"
	listing = 0
}

BEGIN {
	print ".\\\" SPDX-License-Identifier: Apache-2.0"
	print ".\\\" Generated from configs/config.toml by docs/man/config.awk."
	print ".Dd " date
	print ".Dt GPUSLICE.TOML 5"
	print ".Os gpuslice"
	print ".Sh NAME"
	print ".Nm gpuslice.toml"
	print ".Nd configuration of gpuslice"
	print ".Sh SYNOPSIS"
	print ".Pa /etc/gpuslice/config.toml"
	print ".Sh DESCRIPTION"
	print "The file is in the language TOML."
	print "A key that is not known is refused, with its line."
	print "What stands behind each key here is its default; of a section in double brackets, an example."
}
/^# SPDX/ { next }
/^#\[/ {
	close_list()
	paragraph()
	gsub(/[][#]/, "")
	print ".Sh SECTION " toupper($0)
	begins = 1
	next
}
/^#[a-z_]+ *=/ {
	key = substr($0, 2)
	sub(/ *=.*/, "", key)
	value = $0
	sub(/^[^=]*= */, "", value)
	if (!listing)
		print ".Bl -tag -width Ds"
	listing = 1
	begins = 0
	print ".It Ic " escape(key) " No = " escape(value)
	say(comment)
	comment = ""
	next
}
/^#( |$)/ {
	sub(/^# ?/, "")
	if ($0 == "")
		paragraph()
	else
		comment = comment (comment == "" ? "" : " ") $0
	next
}
/^ *$/ { paragraph(); next }
{
	print FILENAME ":" FNR ": config.awk cannot read this line" > "/dev/stderr"
	exit 1
}
END {
	close_list()
	print ".Sh FILES"
	print ".Bl -tag -width Ds"
	print ".It Pa /etc/gpuslice/config.toml"
	print "The default place."
	print "An upgrade keeps what was edited there."
	print ".El"
	print ".Sh SEE ALSO"
	print ".Xr gpuslice 1 ,"
	print ".Xr gpuslice-runtime 8 ,"
	print ".Xr gpusliced 8"
}
