# SPDX-License-Identifier: Apache-2.0
#
# lines.awk FILE…: a line for each command of the `console` blocks, and for each TOML block that is a part of gpuslice's configuration:
# PLACE, KIND, EXPECTED and TEXT, between tabs. KIND is the fence's first word, or "toml", whose TEXT has \n for line ends. EXPECTED is
# "refused" if the document shows a refusal of gpuslice's, "why" with the reason for a block that is not typed, or "ok".
function flush() {
	if (command != "") {
		print FILENAME ":" fence "\t" kind "\t" expected "\t" command
	}
	command = ""
}
/^```/ && inside {
	flush()
	if (inside == "toml" && body ~ /^\[+(enforcer|admission|elastic|runtime|sessions|expiry|tenants|policy|leases|audit)/) {
		print FILENAME ":" fence "\ttoml\tok\t" body
	}
	inside = ""
	next
}
/^```/ {
	fence = FNR
	body = ""
	inside = "other"
	if ($0 ~ /^```console /) {
		inside = "console"
		kind = $2
		sub(/[:,]$/, "", kind)
		why = ($0 ~ /: /) ? substr($0, index($0, ": ") + 2) : ""
		if (kind == "cluster") {
			why = "it needs a cluster"
		} else if (kind == "playground") {
			why = "it needs a playground in another terminal"
		}
		if (why != "") {
			print FILENAME ":" fence "\t" kind "\twhy\t" why
		}
	} else if ($0 == "```toml") {
		inside = "toml"
	}
	next
}
inside == "toml" { body = body $0 "\\n" }
inside == "console" && why == "" && /^[$#] / {
	flush()
	command = ($1 == "#" ? "sudo " : "") substr($0, 3)
	sub(/  +#.*$/, "", command)
	expected = "ok"
	next
}
inside == "console" && /gpuslice: / { expected = "refused" }
