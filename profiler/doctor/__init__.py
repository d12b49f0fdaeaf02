"""Say whether a machine can measure: driver, card and limits, and every engine from build to result."""
