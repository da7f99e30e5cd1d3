package reprise_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// may says what of ours each package may import; the longest prefix decides. Imports
// point one way (docs/architecture.md), so a new edge is a decision, made here.
var may = map[string][]string{
	"internal/diag":    {},
	"internal/debug":   {},
	"ir/dtype":         {},
	"ir/tensor":        {"ir/dtype"},
	"ir/kern":          {"ir/dtype", "ir/kern"},
	"ir":               {"internal", "ir/dtype", "ir/tensor", "ir/kern"},
	"ir/ops":           {"internal", "ir"},
	"ir/interp":        {"internal", "ir"},
	"planner":          {"planner"},
	"passes":           {"internal/diag", "internal/debug", "ir", "passes"},
	"passes/remat":     {"internal/diag", "internal/debug", "ir", "passes", "planner"},
	"passes/policy":    {"internal/diag", "internal/debug", "ir", "passes", "planner"},
	"passes/buffer":    {"internal/diag", "internal/debug", "ir", "passes", "planner"},
	"codegen":          {"internal/diag", "internal/debug", "ir", "codegen"},
	"runtime/native":   {},
	"runtime":          {"internal/diag", "internal/debug", "ir/dtype", "ir/tensor", "runtime"},
	"frontend":         {"internal/diag", "internal/debug", "ir", "frontend"},
	"frontend/opinfo":  {"internal/diag", "ir", "passes"},
	"internal/compile": {"internal", "ir", "frontend", "passes", "planner", "codegen", "runtime"},
	"internal":         {"internal", "ir", "frontend", "passes", "planner", "codegen", "runtime"},
	"bench":            {"internal", "ir", "frontend", "passes", "planner", "codegen", "runtime", "bench"},
	"cmd":              {"internal", "ir", "frontend", "passes", "planner", "codegen", "runtime", "bench", "cmd"},
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		pkg, ok := strings.CutPrefix(words[0], "reprise/")
		if !ok {
			continue // the tests here
		}
		rule := ""
		for prefix := range may {
			if under(pkg, prefix) && len(prefix) > len(rule) {
				rule = prefix
			}
		}
		if rule == "" {
			t.Errorf("%s: no rule says what it may import", pkg)
			continue
		}
		for _, imp := range words[1:] {
			imp, ours := strings.CutPrefix(imp, "reprise/")
			if !ours {
				continue
			}
			allowed := false
			for _, prefix := range may[rule] {
				allowed = allowed || under(imp, prefix)
			}
			if !allowed {
				t.Errorf("%s imports %s; packages under %s may import %v", pkg, imp, rule, may[rule])
			}
		}
	}
}
