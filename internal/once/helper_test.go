package once

import (
	"testing"

	"reprise/internal/testprog"
)

// planSteps keeps the planner's search short: what is tested is the programs.
const planSteps = 500

var lab = testprog.New(planSteps)

func TestMain(m *testing.M) { lab.Main(m) }
