#pragma once

#include "kernels/feature_map.h"

/// The maps of kernels/feature_map.h, one row in double precision.
namespace tarn::kernels::reference {

void identity(const FeatureMap& map, const double* x, double* phi);
void elu_plus_one(const FeatureMap& map, const double* x, double* phi);
void relu(const FeatureMap& map, const double* x, double* phi);
void squared_relu(const FeatureMap& map, const double* x, double* phi);
void dpfp(const FeatureMap& map, const double* x, double* phi);
void taylor(const FeatureMap& map, const double* x, double* phi);
void favor(const FeatureMap& map, const double* x, double* phi);

}  // namespace tarn::kernels::reference
