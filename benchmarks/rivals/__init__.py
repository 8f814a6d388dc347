"""Other systems' recoveries, measured beside Kintsugi's on the same model."""
