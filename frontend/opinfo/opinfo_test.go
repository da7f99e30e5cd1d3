package opinfo_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reprise/frontend/opinfo"
	"reprise/ir/ops"
)

// conformance finds ../shared/conformance next to the repository, "" where it is absent.
func conformance(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(filepath.Dir(dir), "shared", "conformance")
		}
		if up := filepath.Dir(dir); up != dir {
			dir = up
			continue
		}
		t.Fatal("no go.mod above the test")
	}
}

// refusals are the only reasons for which a case may be refused.
var refusals = []string{"matrix decompositions", "the nuclear norm", "dropout whose mask is PyTorch's", "the gradient of values written to one place"}

// Every gradient that PyTorch computed must come out, forward values too, or be refused
// for a stated reason.
func TestGradientCases(t *testing.T) {
	dir := filepath.Join(conformance(t), "gradients", "torch1.13-opinfo")
	cases, err := opinfo.Load(dir)
	if os.IsNotExist(err) {
		t.Skipf("no conformance data at %s", dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	count := map[opinfo.Status]int{}
	table := ops.Table()
	for _, c := range cases {
		r := opinfo.Run(c, table)
		count[r.Status]++
		if r.Status == opinfo.Fail {
			t.Errorf("%s (%s): %s", c.Name, c.Op, r.Reason)
		}
		if r.Status == opinfo.Refused {
			known := false
			for _, why := range refusals {
				known = known || strings.Contains(r.Reason, why)
			}
			if !known {
				t.Errorf("%s (%s) refused: %s", c.Name, c.Op, r.Reason)
			}
		}
	}
	t.Logf("%d pass, %d refused, %d fail", count[opinfo.Pass], count[opinfo.Refused], count[opinfo.Fail])
}
