package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// policyModel plans fast.
const policyModel = "builtin:gpt,layers=1,d=16,heads=2,seq=8,batch=2,vocab=16,dropout=0"

// TestPolicyFlags: a policy by name, file and line; its report in the JSON document and for a person; its
// errors with file, line and exit status.
func TestPolicyFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p")
	require.NoError(t, os.WriteFile(file, []byte("use full # all\nprefer save op=attention\n"), 0o666))
	code, out, errs := cli("plan", policyModel, "--train", "--policy", file, "--rule", "must save op=layer_norm", "--json")
	require.Zero(t, code, errs)
	var doc struct {
		Recomputed int `json:"recomputed"`
		Policy     struct {
			Name  string
			Rules []struct {
				File, Text             string
				Line, Matched, Decided int
				FreedBytes             int64 `json:"freed_bytes"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Positive(t, doc.Recomputed)
	require.Equal(t, file, doc.Policy.Name)
	require.Len(t, doc.Policy.Rules, 3)
	require.Equal(t, "--rule", doc.Policy.Rules[2].File)
	require.Positive(t, doc.Policy.Rules[0].FreedBytes)
	for _, r := range doc.Policy.Rules {
		require.Positive(t, r.Matched, r.Text)
	}
	code, out, _ = cli("plan", policyModel, "--train", "--policy", "none")
	require.Zero(t, code)
	require.Contains(t, out, "policy none\n    --policy:1: none: 0 matched\n")
	code, _, errs = cli("plan", policyModel, "--train", "--policy", "none")
	require.Zero(t, code)
	require.Equal(t, "reprise: warning: a policy was given, and nothing is computed again\n", errs)

	// The bytes of a region, used and allowed, are the same in the document, in the report and in what explains the plan.
	budget := []string{policyModel, "--train", "--rule", "budget layer=layers.* 2KiB"}
	var bounded struct {
		Policy struct {
			Rules []struct {
				Kept    int64 `json:"kept_bytes"`
				Allowed int64 `json:"allowed_bytes"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, append(append([]string{"plan"}, budget...), "--json")...)), &bounded))
	rule := bounded.Policy.Rules[0]
	require.EqualValues(t, 2048, rule.Allowed)
	require.Positive(t, rule.Kept)
	require.LessOrEqual(t, rule.Kept, rule.Allowed)
	for _, command := range []string{"plan", "explain"} {
		text := ok(t, append([]string{command}, budget...)...)
		require.Contains(t, text, "budget layer=layers.* 2KiB: ", command)
		require.Contains(t, text, fmt.Sprintf(", %d of 2048 bytes kept\n", rule.Kept), command)
	}

	code, _, errs = cli("plan", policyModel, "--train", "--rule", "must save op=matmul")
	require.Equal(t, 1, code)
	require.Equal(t, "reprise: --rule:1: rule \"must save op=matmul\" matches nothing: no op \"matmul\"\n  hint: did you mean contract? That is what matmul is here\n", errs)
	code, out, _ = cli("plan", policyModel, "--train", "--rule", "must save op=matmul", "--json")
	require.Equal(t, 1, code)
	require.Contains(t, out, `"code": "policy"`)
	require.Contains(t, out, `"file": "--rule"`)
	code, _, errs = cli("plan", policyModel, "--train", "--rule", "must save op=matmul", "--allow-unmatched")
	require.Zero(t, code)
	require.Contains(t, errs, "warning: --rule:1: rule \"must save op=matmul\" matches nothing")
	code, _, errs = cli("plan", policyModel, "--train", "--rule", "must offload op=attention")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "this target's memory is the host's: moving a value there frees nothing")
	code, _, errs = cli("compile", policyModel, "--policy", "fulll", "-o", filepath.Join(t.TempDir(), "x"))
	require.Equal(t, 1, code)
	require.Contains(t, errs, "did you mean full?")
	code, _, errs = cli("plan", "graph.json", "--policy", "full")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "policies are for models")
	// An inference program: said, and nothing else.
	code, _, errs = cli("plan", policyModel, "--policy", "full")
	require.Zero(t, code)
	require.Contains(t, errs, "no backward part")
}

// TestComparePolicy: plan --compare prints the policy's row and ours.
func TestComparePolicy(t *testing.T) {
	const small = "builtin:mlp,layers=3,in=8,hidden=16,batch=4"
	code, out, errs := cli("plan", small, "--train", "--policy", "dots_saveable", "--compare", "--json")
	require.Zero(t, code, errs)
	for _, key := range []string{`"under_policy"`, `"same_bytes"`, `"save_all_peak_bytes"`, `"arena_bytes"`, `"overhead"`} {
		require.Contains(t, out, key)
	}
	code, out, errs = cli("plan", small, "--train", "--policy", "dots_saveable", "--compare")
	require.Zero(t, code, errs)
	require.Contains(t, out, "policy dots_saveable")
	require.Contains(t, out, "ours in these bytes")
	code, _, errs = cli("plan", small, "--train", "--compare")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "there is no policy to compare with")
}

// TestPolicies lists every named policy.
func TestPolicies(t *testing.T) {
	code, out, _ := cli("policies")
	require.Zero(t, code)
	require.Contains(t, out, "save_only_these_names:NAME,NAME…")
	code, out, _ = cli("policies", "--json")
	require.Zero(t, code)
	require.Contains(t, out, `"from": "torchtitan, Megatron"`)
}
